"""What the kernel has against what plans want: whether it is right, and the difference in words.

There is a module for each kind of object. In all of them `desired` is what a plan wants (None: no plan names the
object), and `applied` is what the kernel has (None: it is not there). Each has some of these functions:

- `agrees(applied, desired)`: whether the one is as good as the other. The controllers' trackers compare with it.
- `differences(...)`: what is not as desired, in sentences of the present, as `kroute explain` prints them.
- `describe_drift(...)`: what a resync has found and repairs, in a sentence of the past, as the log has it.

An object is stale if it is kroute's and no plan names it any more; it is foreign if kroute has not made it. What a
delta means for an object that is foreign or excluded, the controllers decide, not these functions.
"""
