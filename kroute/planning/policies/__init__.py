"""Plan NetworkPolicies (`networking.k8s.io/v1`) and ClusterNetworkPolicies (`policy.networking.k8s.io/v1alpha2`): the
pods of this node that they select, and whom these may talk to.

`rules` and `cluster_rules` read a policy. `peers` knows which pods a selector names. `groups` has what the policies of
a group of pods say, with `first_match` for those of the cluster, and `catalog` puts them together. Where the APIs are
silent:

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
- ClusterNetworkPolicies of one tier and priority are ordered by their names. The tier Baseline is asked, for each
  direction, about pods that no NetworkPolicy isolates in it. What a rule of Baseline passes is accepted.
- A rule of a ClusterNetworkPolicy that cannot be understood closes: one that accepts matches nothing, any other denies
  everything, as the API says of unknown peers. Of a policy of an unknown tier the Deny rules hold, in Admin.
- A call of a pod through a Service that comes back to the pod is judged by ClusterNetworkPolicies, as the API says, and
  not by NetworkPolicies. That the node reaches its pods, no policy of either kind can deny.
"""
