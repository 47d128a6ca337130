"""Runs in LeRobot's interpreter: what the environment says of options that can't be, each a line of JSON.

`python refused.py ENVIRONMENT_FILE < options.json`: a list of options; those that are left out are the simulator's defaults.
"""

import importlib.util
import json
import sys

spec = importlib.util.spec_from_file_location("environment", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
for options in json.load(sys.stdin):
    defaults = {"config": {}, "tasks": None, "pictures": True, "state": True, "trust_remote_code": False}
    try:
        module.Environment(**{**defaults, **options}).reset(0, None)  # some are only made then
    except module.Refused as error:
        print(json.dumps(str(error)))
    else:
        print(json.dumps(None))
