"""Plan the node's BGP speaker from the settings and the annotations of Nodes: `annotations` reads, `catalog` plans."""
