"""What everything else stands on: errors, the log, records, the start of installed commands. Imports nothing of nvc."""
