"""Who may do what: everything but what was forbidden; and the answer to who asks that (SelfSubjectAccessReview)."""

from aiohttp import web

from tests.apiserver import status
from tests.apiserver.resources import Object, Target

ANONYMOUS = "system:anonymous"
USER = "system:serviceaccount:kube-system:kroute"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_WHY = 'RBAC: allowed by ClusterRoleBinding "kroute" of ClusterRole "kroute" to ServiceAccount "kroute/kube-system"'


class Access:
    """The verbs that a client with credentials has not, each with the resource as RBAC rules name it."""

    def __init__(self) -> None:
        self._forbidden: set[tuple[str, str]] = set()
        self.denies_everything = False
        """As a server does that has not read its roles yet."""

    def forbid(self, verb: str, plural: str) -> None:
        """From now on such a request is answered with 403."""
        self._forbidden.add((verb, plural))

    def allow_all(self) -> None:
        """Forget every `forbid`."""
        self._forbidden.clear()
        self.denies_everything = False

    def check(self, target: Target, verb: str) -> None:
        """Raises StatusError for what is forbidden."""
        if not self.allows(verb, target.resource):
            raise status.forbidden(target, verb, USER, target.resource)

    def allows(self, verb: str, plural: str) -> bool:
        """Whether a request of this verb is answered."""
        return not self.denies_everything and (verb, plural) not in self._forbidden

    async def review(self, request: web.Request) -> Object:
        """The review with its status, as the API server writes it."""
        asked: Object = await request.json()
        attributes = asked["spec"]["resourceAttributes"]
        subresource = attributes.get("subresource")
        resource = attributes["resource"] + (f"/{subresource}" if subresource else "")
        allowed = self.allows(attributes["verb"], resource)
        verdict: Object = {"allowed": True, "reason": _WHY} if allowed else {"allowed": False}
        return {**asked, "metadata": {"creationTimestamp": None}, "status": verdict}
