"""Components on several machines, on Ray: its nodes are our devices, its actors host components, its calls
carry tensors, its token and TLS guard it. No transport, no membership and no scheduler is written here."""
