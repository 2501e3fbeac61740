//! panda-rpc
