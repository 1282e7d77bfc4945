"""Writes "f" in the working directory, where there is no room; prints the error and what is left."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))
from nvc.base.errors import NvcError
from nvc.engines.config import FileEdit
from nvc.engines.files import Files, write

try:
    write(FileEdit("f", "old", "x" * 100_000, "make"), Files())
except NvcError as error:
    print(error, "|", error.hint, "|", Path("f").read_text(), "|", sorted(os.listdir()))
