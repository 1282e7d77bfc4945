"""The words that Go's strconv.ParseBool takes, which the toolkit's options, variables and settings are read with."""

from __future__ import annotations

TRUE, FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")
