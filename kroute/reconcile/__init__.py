"""The frame that all controllers stand on.

Read the modules in this order: `broadcaster` (how plans come to controllers), `desired_state` (desired state, applied
state, deltas), `stage_gate` (how controllers wait for each other), `controller` (the loop that all share),
`staged_controller` (the base of controllers whose objects exist before a VIP goes live), `batch_writer` (what follows a
write), `pass_status` (counters, refusals, retries) and `ledger` (which objects are ours). `batches`,
`standing_problems` and `cleanup_report` are small tools.

**Concurrency.** Each controller is one task, and no other task touches its mutable state. It sleeps until new plans
arrive, the kernel sends an event, a plan passes a stage of another controller, or a retry or a resync falls due. Then
it makes one pass: it takes everything that waits, changes its desired state, writes the deltas to the kernel, notes the
applied state, and says which stages its plans have passed. The task that listens to the kernel only appends events to a
list. New plans never interrupt a batch that is being written; they are the next batch. Large work is done in slices.
Other tasks run between two slices, but this controller's state does not change there. Controllers share only the stage
gate, whose calls are atomic, and objects that one of them changes and another reads: the dummy interface
(service_proxy, for route_fix), the pods that are prepared (direct_return, for service_proxy), and the live addresses
(service_proxy and direct_return, for announcing).

**The life of a controller.** `start` prepares what needs no plans, and waits for the initial sync. The first pass takes
in all plans and resyncs: it adopts what an earlier run left. If nothing has changed, the first pass has no deltas, and
an adopted object that equals the desired one is in memory once. Every `resync_period` a look finds out whether another
program may have changed something. A resync follows if so, and precedes each retry (`resync_schedule` has the rest):
every object that another program has changed is logged, counted and repaired. Plans that arrive during a resync are
written between two parts of the scan (`write_new_changes`); the `Resync` knows which objects were written since it
began. An object that the kernel refuses is tried again alone, with a backoff. When a whole pass fails, a resync
follows, because the kernel's state is unknown then. `stop` leaves the kernel's state as it is, and so does a kill at
any point.

**To add a controller**, write a folder or module in `kroute/controllers/` and a line where controllers are made. If
others are to wait for it, it declares its own `Stage` and says it; only controllers that name the stage in `waits_for`
are woken by it.
"""
