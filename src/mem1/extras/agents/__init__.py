"""A memory for agents of other frameworks; each file imports its own framework and is imported by nothing else.

from mem1.extras.agents.langchain import MemoryMiddleware           create_agent(..., middleware=[MemoryMiddleware()])
from mem1.extras.agents.pydantic_ai import MemoryCapability         Agent(..., capabilities=[MemoryCapability()])
from mem1.extras.agents.openai_agents import AgentMemory            Runner.run(..., run_config=memory.run_config())
from mem1.extras.agents.inspect import MemoryCompaction             react(..., compaction=MemoryCompaction())
"""
