"""``ask_load.py ROOT SECONDS``: what the machine's NVML says of its GPUs' load, after so many seconds, as JSON."""

import json
import sys
import time

from nvc.inject.api import Config, Context

time.sleep(float(sys.argv[2]))
with Context(Config(sim=sys.argv[1])) as context, context.driver() as driver:
    print(json.dumps(driver.load(driver.begin_load()).as_data()))
