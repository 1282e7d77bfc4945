"""Bytes in, Records out: parsers of foreign formats. No I/O."""
