"""For all tests."""

import os

# two processes with a thread per core each wait for one another at every small product: ten times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")
