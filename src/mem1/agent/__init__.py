"""A small agent: a model, tools and a memory. For existing agents use `mem1.messages`."""

from __future__ import annotations

from mem1.agent.agent import Agent, Called, Returned
from mem1.agent.chat import ModelFailed
from mem1.agent.mcp_tools import McpServer
from mem1.agent.replies import Repeated
from mem1.agent.report import Ending, Report
from mem1.agent.tools import Tool

__all__ = ["Agent", "Called", "Ending", "McpServer", "ModelFailed", "Repeated", "Report", "Returned", "Tool"]
