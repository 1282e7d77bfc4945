"""``write_without_right.py FILE OLD``: writes the file as user 65534; prints the error."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))
from nvc.base.errors import PrivilegeError
from nvc.engines.config import FileEdit
from nvc.engines.files import Files, write

os.setuid(65534)
try:
    write(FileEdit(sys.argv[1], sys.argv[2], "new", "make"), Files())
except PrivilegeError as error:
    print(error, "|", error.hint)
