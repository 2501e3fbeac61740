//! panda-agentlet
