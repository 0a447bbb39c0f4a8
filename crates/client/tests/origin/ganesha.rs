//! Everything once against nfs-ganesha, if it is installed.
