"""Problems changed but the same: canonical forms, renamed objects, deceptive words."""
