"""``configure_slowly.py MACHINE PID ROOTFS LDCONFIG``: configures a container with an ldconfig that does not end."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))
from nvc.inject.api import Config, ContainerConfig, ContainerOptions, Context

machine, pid, rootfs, program = sys.argv[1:]
with Context(Config(sim=machine)) as context:
    config = ContainerConfig(int(pid), rootfs, ldconfig="@" + program)
    with context.container(config, ContainerOptions(supervised=True, no_cgroups=True)) as session:
        session.mount_driver(context.driver_info())
        session.update_ldcache()
        print("go", flush=True)
        session.apply()
