"""On ranks: run scripts one after the other, as if each had been started alone.

Argument: a list of commands, each a script and its arguments, as JSON.
"""

import json
import runpy
import sys

for command in json.loads(sys.argv[1]):
    print("running", command[0])  # the last that is seen where a rank fails
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
