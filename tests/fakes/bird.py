"""BIRD in memory. It was held against BIRD 2.0.12 by tests/kernel/contracts_bird.py: what it answers, and when."""

from kroute.kernel.bird import BirdError, Session


class FakeBird:
    """Reads what it is told, unless it is `away`, or `refuses`. `told` are the texts that it was told, in order, `text`
    is what it has, and `known` are its sessions."""

    def __init__(self, text: str | None = None) -> None:
        self.file = self.text = text
        self.told: list[str] = []
        self.away = self.refuses = False
        self.known: list[Session] = []

    def read(self) -> str | None:
        return self.file

    def remove(self) -> None:
        self.file = None

    async def has(self, text: str) -> bool:
        self._answer()
        return self.text == text

    async def sessions(self) -> list[Session]:
        self._answer()
        return self.known

    async def configure(self, text: str) -> None:
        if self.refuses and not self.away:
            raise BirdError("BIRD refuses configure: syntax error", is_refusal=True)
        self.file = text
        self._answer()
        self.text = text
        self.told.append(text)

    def restart(self) -> None:
        """It comes back with the file's configuration."""
        self.away, self.text = False, self.file

    def _answer(self) -> None:
        if self.away:
            raise BirdError("BIRD cannot be reached: Connection refused; is it running?")
