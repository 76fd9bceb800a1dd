"""`firnline demo`: the whole main job on an embedded broker, catalog and warehouse."""
