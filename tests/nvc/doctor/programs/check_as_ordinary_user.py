"""``check_as_ordinary_user.py MACHINE``: every check of the doctor as user 65534; prints level, check and finding."""

import os
import sys

from nvc.doctor import runner
from nvc.doctor.probe import Probe
from nvc.model import Host
from tests.support.doctor_tree import CHECKS

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
host = Host(root=sys.argv[1], system=sys.argv[1])
for check in CHECKS.values():
    for finding in runner.examine(check, Probe(host, kernel=sys.argv[1])):
        print(finding.level, finding.check, finding.what)
