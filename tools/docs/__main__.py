"""``make docs``: what pages need is made, then mkdocs builds the site, strictly."""

import os
import subprocess
import sys
import time

from tools.docs import commands, diagrams, screens
from tools.docs.made import ROOT, SITE


def main() -> int:
    start = time.monotonic()
    commands.main()
    diagrams.main()
    if os.geteuid() == 0:
        # Shares of other containers are not to be in the pictures.
        inside = 'mkdir -p /run/nvc && mount -t tmpfs tmpfs /run/nvc && exec "$0" -m tools.docs.screens'
        subprocess.run(["unshare", "--mount", "sh", "-c", inside, sys.executable], cwd=ROOT, check=True)
    else:
        screens.main()
    # Not --quiet: what it does not print, --strict does not count.
    build = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        build, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print("".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("INFO")), end="")
    if done.returncode == 0:
        pages = len([*SITE.rglob("*.html")])
        print(f"{pages} pages in {time.monotonic() - start:.0f} s: {SITE.relative_to(ROOT)}/index.html")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
