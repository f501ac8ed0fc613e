"""Files of records as OneFlow reads them: the length of each in eight bytes, then the record."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

SUFFIX = 5  # digits in names of files


def write_records(folder: Path, features: dict[str, Any], parts: int) -> None:
    """Write rows of arrays of float32 as records with these features, into so many files in turn."""
    from oneflow.core.record import record_pb2

    folder.mkdir(parents=True, exist_ok=True)
    count = len(next(iter(features.values())))
    each = count // parts
    for part in range(parts):
        with (folder / f"part-{part:0{SUFFIX}}").open("wb") as file:
            for row in range(part * each, (part + 1) * each):
                record = record_pb2.OFRecord()
                for name, array in features.items():
                    record.feature[name].float_list.value.extend(array[row].ravel().tolist())
                data = record.SerializeToString()
                file.write(struct.pack("<q", len(data)) + data)
