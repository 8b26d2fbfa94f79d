"""What may happen: the framework (expr, table, rulebook), the tables, and the joint protocol of the CalRT executor.

Pure data and pure functions: no I/O, no threads, no ctypes. Everything else in this project reads this package.
"""
