"""Devices AUTO, MULTI and BATCH: whole models on other devices, chosen, shared out or gathered."""
