"""Human pacing towards the stand-in: the one combination that no channel of the project has, and the chaos runs need."""

from sessions_app.pacing import Metered
from sessions_app.providers.sandbox import SandboxProvider


class HumanSandbox(SandboxProvider):
    """As the sandbox, so that absence is proof and nothing may stay unconfirmed, but at the pace of a human."""

    key = "human_sandbox"
    label = "Sandbox at human pace"
    pacing = None  # type: ignore[assignment]

    @property
    def metered(self) -> Metered | None:  # type: ignore[override]
        return None
