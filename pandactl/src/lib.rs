//! pandactl
