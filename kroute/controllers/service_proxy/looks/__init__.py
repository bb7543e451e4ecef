"""Finding out cheaply whether others have changed IPVS."""
