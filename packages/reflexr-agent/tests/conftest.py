"""Which tests there are where the member is installed alone."""

from importlib.util import find_spec

# A member's wheel is tested without the members that it does not need.
collect_ignore = [] if find_spec("reflexr.sql") else ["test_dbos.py", "test_graph_processes.py"]
