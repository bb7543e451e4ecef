"""The frame that all controllers stand on.

To be read in this order: `desired_state` (what should be in the kernel, what is there, the deltas), `stage_gate` (how
controllers wait for each other), `controller` (the loop that all share), `staged_controller` (a whole controller for
objects that stand before a VIP goes live), `pass_status` (counters, refusals, retries), `ledger` and `exclusion` (what
is ours, and what is nobody's business of ours); `batches`, `change_log` and `cleanup_report` are small tools.

**Concurrency.** Each controller is one task, the only one that touches its mutable state. It waits until there is
something to do: new plans, a kernel event, a stage that another controller says, a retry that falls due, the time of a
resync. Then it makes one pass: it takes everything that waits, changes its desired state, writes the deltas to the
kernel, notes what was applied, and says which stages its plans have passed. The task that listens to the kernel only
lets events wait in a list. A batch that is being written is never interrupted by a newer one; the newer one is simply
the next. What is large is done in slices, between which other tasks run; nothing of this controller's changes there.
Controllers share no state but the stage gate, whose calls are atomic, and the dummy interface, which service_proxy
makes.

**The life of a controller.** `start` prepares what needs no plans and waits for the initial sync, the initial sync
of plans. The first pass takes it in, then resyncs: it adopts what an earlier run left, so that the first deltas are
none if nothing has changed, and what is as the plans say is in memory once. From then on a resync comes every
`resync_period`, and before something that failed is tried again: whatever is not as it was left is logged, counted and
repaired. What arrives while a resync reads does not wait for its end: it is written between two parts of the reading
(`meanwhile`), and the `Resync` knows what has overtaken it. What the kernel refuses is tried again later and later,
alone; a pass that fails as a whole is followed by a resync, since nothing is known then. `stop` leaves the kernel as it
is, and being killed at any point is no worse. `cleanup` undoes everything, in a process in which nothing runs.

**One more controller** is a folder or module of its own in `kroute/controllers/` and a line where controllers are made.
If others are to wait for it, it declares a `Stage` of its own and says it; only those wait who name it in `waits_for`.
"""
