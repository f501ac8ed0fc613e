"""Describe tensor states on meshes of devices."""
