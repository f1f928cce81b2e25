"""``python -m localkube.node SETTINGS.json``: run the node agent; the supervisor starts it in the site."""

import asyncio
import logging
import sys
from pathlib import Path

from localkube.node.agent import Agent
from localkube.node.agent_settings import AgentSettings


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(Agent(AgentSettings.read(Path(sys.argv[1]))).run())


if __name__ == "__main__":
    main()
