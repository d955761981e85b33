"""Stand-ins for what surrounds the package, under a test's control: stores, file systems, networks, clocks, clients."""
