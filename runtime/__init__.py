"""Makes it happen: the binding to CalRT, the manifest, and (with later work) the executor. Uses `machines`."""
