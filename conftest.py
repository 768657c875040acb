"""What every test tree shares: the profiles of Hypothesis. Fixtures live beside the tests that use them."""

import os

from hypothesis import settings

# `ci` tries the same examples each time, so a red run is red again; `dev` goes looking for new ones.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
