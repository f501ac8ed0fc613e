"""Pages of plans as tests read them: with html.parser, not with what wrote them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input"}
SECTIONS = (
    "summary", "layers", "time", "memory", "baselines", "pareto", "timeline", "sensitivity",
    "calibration", "glossary",
)  # fmt: skip


@dataclass
class Table:
    """A table: its column heads, and the cells of its rows."""

    heads: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    def column(self, head: str) -> list[str]:
        return [row[self.heads.index(head)] for row in self.rows]


class Page(HTMLParser):
    """A page: its elements with their attributes, the texts and tables of its sections."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.texts: list[str] = []
        self.section = ""
        self.words: dict[str, list[str]] = defaultdict(list)
        self.tables: dict[str, list[Table]] = defaultdict(list)
        self.open: list[str] = []
        self.declared: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(attrs)))
        if tag in VOID or self.get_starttag_text().endswith("/>"):  # type: ignore[union-attr]
            return
        self.open.append(tag)
        if tag == "section":
            self.section = dict(attrs)["id"] or ""
        elif tag == "table":
            self.tables[self.section].append(Table())
        elif tag == "tr" and "tbody" in self.open:
            self.tables[self.section][-1].rows.append([])
        elif tag in ("td", "th"):
            self._cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open[-5:])
        self.open.pop()
        if tag in ("td", "th"):
            self._cells[-1] = " ".join(self._cells[-1].split())

    @property
    def _cells(self) -> list[str]:
        table = self.tables[self.section][-1]
        return table.rows[-1] if "tbody" in self.open else table.heads

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if "style" in self.open:
            return
        self.words[self.section].append(data)
        if self.open and {"td", "th"} & set(self.open) and "svg" not in self.open:
            self._cells[-1] += data

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", ((data, None),)))

    def handle_pi(self, data: str) -> None:
        self.elements.append(("pi", ((data, None),)))

    def handle_decl(self, decl: str) -> None:
        self.declared.append(decl)

    def unknown_decl(self, data: str) -> None:
        self.elements.append(("declaration", ((data, None),)))

    def text(self, section: str) -> str:
        """Return the words of a section, with single blanks between them."""
        return " ".join(" ".join(self.words[section]).split())

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [dict(attrs) for name, attrs in self.elements if name == tag]
