"""The file formats by name."""

from holdfast.sources.files.columnar import ArrowFormat
from holdfast.sources.files.csv_format import CsvFormat, CsvOptions
from holdfast.sources.files.file_format import FileFormat
from holdfast.sources.files.hive import HiveFormat
from holdfast.sources.files.json_format import JsonFormat
from holdfast.sources.files.parquet_format import ParquetFormat
from holdfast.sources.files.text_format import COMPRESSIONS


def formats(options: CsvOptions, record_bytes_max: int, partitioning: str | None) -> dict[str, FileFormat]:
    found: list[FileFormat] = [
        ParquetFormat(),
        ArrowFormat(),
        CsvFormat(options, record_bytes_max),
        JsonFormat(record_bytes_max),
    ]
    if partitioning == "hive":
        found = [HiveFormat(form) for form in found]
    return {form.name: form for form in found}


def has_suffix(path: str, form: FileFormat) -> bool:
    """Return whether a file's name says that it has this format."""
    for compression in COMPRESSIONS if form.compressible else ():
        path = path.removesuffix(compression)
    return path.lower().endswith(form.suffixes)
