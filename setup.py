"""Package metadata, and the mapping of the top-level folders to their import names.

The code of `autoddl.sbp` lies in `sbp/`, and likewise for `perfmodel` and `search`. Wheels learn
that from `package_dir`; in the checkout the relative links `autoddl/sbp -> ../sbp` do the same for
Python, mypy and import-linter.
"""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
MAPPED = ("sbp", "perfmodel", "search")

# The links would be found as a second copy of the mapped folders, hence the exclusion.
packages = [
    "autoddl",
    *(
        f"autoddl.{name}"
        for name in find_packages(
            str(ROOT / "autoddl"),
            exclude=[pattern for name in MAPPED for pattern in (name, f"{name}.*")],
        )
    ),
]
for folder in MAPPED:
    packages.append(f"autoddl.{folder}")
    packages.extend(f"autoddl.{folder}.{name}" for name in find_packages(str(ROOT / folder)))

# OneFlow 0.9.0 has wheels for CPython 3.10 and older. No marker hides that: on a newer Python pip
# should refuse autoddl[oneflow] rather than install it without its engine.
ONEFLOW = [
    "oneflow==0.9.0",
    "nvidia-cudnn-cu11==8.5.0.96",
    "nvidia-cublas-cu11==11.10.3.66",
    "numpy<2",
    "protobuf<4",
]
PLOTS = ["matplotlib==3.10.9"]
FRAMES = ["pandas==2.3.3", "tabulate==0.10.0"]  # tables of experiments; tabulate writes Markdown
TEST = [
    *FRAMES,
    "hypothesis==6.168.5",
    "numba==0.68.1",
    "pytest==9.2.0",
    "pytest-xdist==3.8.0",
    "pytest-rerunfailures==16.7",
    "scipy==1.15.3",
    "setuptools==80.9.0",  # builds the wheel that tests/test_packaging.py looks into
]
DEV = [
    *TEST,
    *PLOTS,
    "import-linter==2.15",
    "mypy==2.4.1",
    "pandas-stubs==2.3.3.260113",
    "ruff==0.17.5",
]

readme = ROOT / "README.md"

setup(
    name="autoddl",
    version="0.1.0",
    description="Automatic parallelisation of OneFlow training graphs",
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=packages,
    package_dir={f"autoddl.{folder}": folder for folder in MAPPED},
    package_data={
        "autoddl": ["py.typed", "engine/oneflow/model/refused.json", "report/page/templates/*"],
        "autoddl.perfmodel": ["profiles/*.json"],
    },
    include_package_data=False,
    zip_safe=False,
    install_requires=[
        "click>=8.2",
        "jinja2>=3.1",
        "msgspec>=0.20",
        "numba>=0.68",
        "numpy>=1.26",
        "rich",
        "scipy>=1.11.3",
    ],
    extras_require={
        "oneflow": ONEFLOW,
        "plots": ["matplotlib>=3.8"],
        "report": ["pandas>=2.2"],
        "test": TEST,
        "dev": DEV,
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
