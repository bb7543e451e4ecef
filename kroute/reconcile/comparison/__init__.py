"""Compares the kernel's objects with the plans: whether they agree, and the differences in words.

There is a module for each kind of object. In all of them `desired` is the object as a plan wants it (None: no plan
names it), and `applied` is the object as the kernel has it (None: it is missing). Each has some of these functions:

- `agrees(applied, desired)`: whether the one is as good as the other. `DesiredState` compares with it.
- `differences(...)`: what is not as desired, in sentences in the present tense, as `kroute explain` prints them.
- `describe_drift(...)`: what a resync has found and repairs, in one sentence, as the log has it.

An object is stale if kroute has made it and no plan names it any more. It is foreign if kroute has not made it. The
functions here ignore whether an object is foreign: the controllers decide that.
"""
