"""What back ends of search servers share."""
