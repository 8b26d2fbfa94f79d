"""The vendor kit (§14): one experiment per vendor fact, through the same C ABI that the executor uses.

§14 lists what nobody may infer from source code. Here each such fact is asked of the device itself: `rig` makes jobs by
straight code, `experiments` has one function per fact, `command` runs them all and writes an evidence file. Against the
simulator the kit must find the true setting of every switch; on a target machine it is what the vendor runs.
"""
