"""A server of ours: started, watched and stopped, whatever becomes of us."""
