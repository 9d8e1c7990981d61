"""Containers: the builder that makes the wheels, and the image that trains with them.

These modules need the standard library only, of Python 3.8 or later: a host that has a container engine and
nothing else can build. ``engine`` knows docker, podman and buildah, ``network`` gives a container this machine's
package index and certificates, ``builder`` and ``train`` make the two images.
"""
