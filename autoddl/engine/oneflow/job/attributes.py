"""Attributes of the engine's ops, from plain values as capture reads them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import oneflow as flow
from oneflow.core.framework import user_op_attr_pb2

from autoddl.errors import AutoDDLError


def attribute(op_type: str, name: str, value: Any) -> Any:
    """Return the AttrValue of an op's attribute.

    Raises:
        AutoDDLError: the op has no such attribute, or none of that type.
    """
    return attribute_value(value, attribute_type(op_type, name))


@cache
def attribute_type(op_type: str, name: str) -> str:
    """Return the engine's type of an attribute, as the field of AttrValue: "at_list_int64".

    An attribute of the wrong type gets an error that names the right one.
    """
    wrong = "at_list_stride"
    builder = flow._oneflow_internal.one.OpBuilder(op_type)
    builder.attr(name, f"{wrong} {{}}")
    try:
        builder.build()
    except Exception as error:
        named = re.search(r"should be with type: kAt(\w+)", str(error))
        if named is None:
            raise AutoDDLError(str(error)) from None
        return "at" + re.sub(r"([A-Z])", r"_\1", named[1]).lower()
    return wrong


def attribute_value(value: Any, field: str) -> Any:
    """Return the AttrValue of a plain value, in the given field."""
    message = user_op_attr_pb2.AttrValue()
    content = getattr(message, field)
    try:
        if field in ("at_shape", "at_stride"):
            content.SetInParent()
            content.dim.extend(value)
        elif field in ("at_list_shape", "at_list_stride"):
            content.SetInParent()
            for entry in value:
                content.val.add().dim.extend(entry)
        elif field.startswith("at_list"):
            content.SetInParent()
            content.val.extend(value)
        else:
            setattr(message, field, value)
    except (TypeError, ValueError) as error:
        raise AutoDDLError(f"attribute value {value!r} is no {field}: {error}") from None
    return message
