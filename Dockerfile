# The daemon, with the simulated cloud as its only provider:
#
#   docker build -t REGISTRY/kube-ccm:0.1.0 .
#   docker push REGISTRY/kube-ccm:0.1.0
#
# An image with your own:
#
#   FROM REGISTRY/kube-ccm:0.1.0
#   USER 0
#   COPY ccm_rack-1.0.0-py3-none-any.whl /tmp/
#   RUN pip --python /opt/ccm/bin/python install --no-cache-dir /tmp/*.whl
#   USER 65532:65532
#
# No step depends on the machine: docker buildx build --platform linux/amd64,linux/arm64 .
# To pin the base to the byte, name its digest too: --build-arg BASE=python:...@sha256:...
ARG BASE=python:3.13.9-slim-trixie

FROM ${BASE} AS build
# Another index of packages: --build-arg PIP_INDEX_URL=https://... (this stage is not shipped).
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
WORKDIR /src
COPY requirements.lock ./
# Everything that is locked, each file's hash checked; what follows installs from these files and
# from nowhere else, so the daemon gets what it requires of them and no development tools.
RUN pip download --quiet --no-cache-dir --require-hashes --only-binary=:all: \
    --requirement requirements.lock --dest /wheels
RUN python -m venv /build && python -m venv --without-pip /opt/ccm
RUN /build/bin/pip install --quiet --no-index --find-links /wheels hatchling
COPY pyproject.toml README.md LICENSE ./
COPY ccm ccm
COPY providers providers
RUN /build/bin/python -m hatchling build -t wheel -d /dist
# With storage in buckets and PostgreSQL: --build-arg EXTRAS=uvloop,openstack,s3,postgres
ARG EXTRAS=uvloop,openstack
RUN /build/bin/pip --python /opt/ccm/bin/python install --quiet \
    --no-index --find-links /wheels --find-links /dist "kube-ccm[${EXTRAS}]"
# keystoneauth1 brings pbr, which requires it to build packages only.
RUN /build/bin/pip --python /opt/ccm/bin/python uninstall --quiet --yes setuptools

FROM ${BASE}
# The release workflow adds source and revision.
LABEL org.opencontainers.image.title=kube-ccm \
    org.opencontainers.image.description="A Kubernetes cloud-controller-manager in Python" \
    org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.version=0.1.0
COPY --from=build /opt/ccm /opt/ccm
ENV PATH=/opt/ccm/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A number, so that a kubelet can tell that it is not root.
USER 65532:65532
WORKDIR /
EXPOSE 10258 10260
ENTRYPOINT ["/opt/ccm/bin/cloud-controller-manager"]
