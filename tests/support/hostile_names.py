"""300 names that want to be more than names: markup, scripts, templates, control characters."""

from __future__ import annotations

from itertools import cycle, islice

_MARKUP = [
    "<script>alert(1)</script>", "<b>bold</b>", "</td></tr></table>", "</style><script>x</script>",
    "</title>", "</svg><p>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "<!-- ",
    "-->",
    "<!DOCTYPE html>", "]]>", "<![CDATA[x]]>", "<?xml version='1.0'?>", "<?php x ?>",
    "<a href='javascript:x'>",
    "javascript:alert(1)", "data:text/html,<b>", "<iframe src=//x>", "<base href=//x>",
    "<meta http-equiv=refresh>",
    "<link rel=stylesheet href=//x>", "<style>*{display:none}</style>",
    "<math><mi//xlink:href='data:x'>",
    "<details open ontoggle=x>", "<template>", "<plaintext>", "<textarea>", "<noscript>", "<", ">",
    "<<>>",
]  # fmt: skip
_QUOTES = [
    '"', "'", "`", '" onmouseover="x', "' onclick='x", '"><b>', "'><b>", "\\", '\\"', "'; x",
    '"; x //',
    "&", "&amp;", "&lt;b&gt;", "&#60;b&#62;", "&#x3c;b&#x3e;", "&nbsp", "&unknown;", "&#0;",
    "%3Cb%3E",
]  # fmt: skip
_TEMPLATES = [
    "{{ 7 * 7 }}", "{% include '/etc/passwd' %}", "{# x #}", "{{ ''.__class__.__mro__ }}",
    "${7*7}", "<%= 7 %>",
    "{{ v }}", "{{", "}}", "{%", "%}", "%s", "%n", "{0}", "{plan}", "[bold red]x[/bold red]",
    "[link=x]x[/link]",
    "[/]", ":warning:", "[", "]", "$(x)", "`x`", "../../x", "/etc/passwd", "null", "None", "nan",
    "undefined",
    "true", "__proto__", "constructor", "plan", "data parallel",
]  # fmt: skip
_CONTROLS = [
    *(chr(code) for code in (*range(32), *range(127, 160))),
    "\x1b[31mred", "\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "a\nb", "a\rb", "a\r\nb", "a\tb",
    "a\x00b", "\x08\x08x",
    "\u202eabc", "\u202dabc", "\u2066abc\u2069", "\u200fabc", "\u200babc", "\ufeffabc",
    "\u2028abc", "\u2029abc",
    "\u00adabc", "\ud800", "\udfff", "\U000e0001x", "\uffff", "\ufffe",
]  # fmt: skip
_LONG = [
    "x" * 5000,
    "<b>" * 2000,
    "&" * 3000,
    "\x1b[31m" * 500,
    "{{" * 2000,
    "é" * 3000,
    "字" * 3000,
]
_EMPTY = [
    "",
    " ",
    "   ",
    ".",
    "..",
    "...",
    "-",
    "/",
    "a.b.c",
    "0",
    "-1",
    "∞",
    "½",
    "🙂",
    "ﷺ",
    "a\u0301" * 50,
]
_FIRST = [*_MARKUP, *_QUOTES, *_TEMPLATES, *_CONTROLS, *_LONG, *_EMPTY]

COUNT = 300
HOSTILE = [
    *_FIRST,
    *(f"{a}{b}" for a, b in islice(zip(_MARKUP * 4, cycle(_CONTROLS)), COUNT - len(_FIRST))),
][:COUNT]  # fmt: skip
"""All unlike each other."""
