//! panda-controllers
