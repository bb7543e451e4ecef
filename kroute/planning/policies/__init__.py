"""Plan NetworkPolicies (`networking.k8s.io/v1`): the pods of this node that are isolated, and whom they may talk to.

`rules` reads a policy. `peers` knows which pods a selector names. `groups` has what the policies of a group of pods
allow, and `catalog` puts them together. Where the API is silent:

- A policy of which a part cannot be understood isolates the pods that it selects, and that part allows nothing; a
  Problem says so. If `podSelector` itself cannot be understood, the policy selects no pod: to isolate all pods of the
  namespace instead would end connections that the policy may never have meant.
- An unknown word in `policyTypes` is left out (a Problem). Without a known one the API's default for none holds.
- A rule for which there is no room (`Limits`) allows nothing (a Problem). Which rules those are depends on the objects
  alone, not on their history.
- Pods on their node's network are the node: no policy selects them, and no selector of a peer names them. The API
  leaves both open. An `ipBlock` with the node's address names them.
- Pods that have completed are neither selected nor peers. Pods that terminate are both until they are gone. Of several
  pods with one address one counts, for all purposes: one that does not terminate, before that one on this node, before
  that the newest.
- No `namespaceSelector` selects a Namespace that has not been seen: also `NotIn` and `DoesNotExist` need one that is
  known not to have the label.
- A port's name is looked up in containers, then in sidecars, and the first that has it counts. For egress it has to be
  a port of the peer, so together with an `ipBlock` it allows nothing (a Problem); a rule for all destinations allows it
  on those pods that have a port of the name.
"""
